"""Which cycle, which boost, which momentum of absent units: raw numbers, one line of JSON a training."""
import json, sys, time, math, os, subprocess
from pathlib import Path
import torch, mrreg
from torch import nn
from benchmarks.core.comparison import Job
from benchmarks.experiments.thin import chars, vit, mlp
from benchmarks.experiments.thin.images import Draw, loop as image_loop, SIZE
from benchmarks.experiments.thin.draws import drawn
from benchmarks.experiments.thin.networks import VisionTransformer, resnet
from benchmarks.experiments.thin.decoder import Decoder
from benchmarks.core.training import Loop, Batches, mean_loss, shuffled
from benchmarks.data import mnist
from mrreg.masks.step_hooks import driving
import inspect

torch.set_num_threads(1)
DATA = Path(os.environ["MRREG_DATA"]); OUT = Path(sys.argv[1])
K = 5
done = set()
if OUT.exists():
    done = {tuple(json.loads(l)["key"]) for l in OUT.open()}

def wrap_step(loop, opt, method):
    """Change what the masks do around steps."""
    hooks = driving(opt)
    inner = loop.step
    momentum = {"exp_avg": "b1", "exp_avg_sq": "b2", "momentum_buffer": "m"}
    def step():
        out = inner()
        clock = opt.param_groups[0]["mask_clock"]
        if method == "fresh" and clock % K:
            for g in opt.param_groups: g["mask_clock"] = (clock // K + 1) * K
            hooks.sync_masks(opt)
        elif method == "nojoint" and clock % K == K - 1:
            for g in opt.param_groups: g["mask_clock"] = clock + 1
            hooks.sync_masks(opt)
        elif method in ("decay", "reset") and clock % K == K - 1:
            with torch.no_grad():
                for mask, _ in hooks.masks:
                    for name, p in mask.masked_parameters():
                        tensor = mask.tensors.get(name)
                        if tensor is None or not tensor.cuts: continue
                        g = opt.param_groups[0]
                        entries = tensor.entries(p)
                        for s, v in opt.state[p].items():
                            if s not in momentum or v is None: continue
                            if method == "reset":
                                if s == "exp_avg_sq": continue
                                f = 0.0
                            else:
                                f = {"exp_avg": lambda: g["betas"][0], "exp_avg_sq": lambda: g["betas"][1], "momentum_buffer": lambda: g["momentum"]}[s]() ** (K - 1)
                            kept = entries.take(v).clone()
                            v.mul_(f)
                            entries.put(kept, v)
        return out
    loop.step = step

def optimizer_of(kind, params, lr, wd):
    if kind == "sgd": return torch.optim.SGD(params, lr=lr, weight_decay=wd)
    if kind == "sgdm": return torch.optim.SGD(params, lr=lr, momentum=0.9, weight_decay=wd)
    return torch.optim.AdamW(params, lr=lr, weight_decay=wd)

PLANS = {}
def thin_of(name, model, p, boost, x):
    key = name, str(p)
    if key not in PLANS:
        import copy
        PLANS[key] = mrreg.thin(copy.deepcopy(model), p, K, x)[1]
    return mrreg.thin(model, k=K, boost=boost, plan=PLANS[key])[0]

def train(task, okind, lr, method, variant, seed, steps=None):
    boost = float(K) if method == "boost k" else 1.0
    thin = method not in ("none", "dropout", "decay wd")
    drop = method == "dropout"
    job_steps = {"digits": 600, "digits5": 1200, "chars": 1600, "vit": 500, "resnet": 400}[task]
    torch.manual_seed(seed)
    if task.startswith("digits"):
        images = 1000 if task == "digits" else 5000
        data = mnist.load("mnist", DATA)
        d = type(data)(**{**data.__dict__, "draw": images}) if hasattr(data, "__dict__") else data
        from dataclasses import replace
        d = replace(data, draw=images)
        train_d, validation = d.without_last(5000), d.validation(5000)
        p = variant["p"]
        model = mlp.network(mlp.Method("dropout", p=(p.get("inputs", 0.0), p["hidden"])) if drop else mlp.Method(), (784, 1000, 10))
        if thin: model = thin_of(task, model, p, boost, torch.rand(2, 784))
        opt = optimizer_of(okind, model.parameters(), lr, 0.01 if okind == "adamw" else 0.0)
        if thin: mrreg.attach(opt, model, seed=seed)
        torch.manual_seed(seed)
        chosen = train_d.examples(seed)
        batches = Batches(shuffled(len(chosen), 100), lambda i: (train_d.x[chosen[i]], train_d.y[chosen[i]]), torch.Generator().manual_seed(10_000 + seed))
        def parts(q): return zip(q.test_x.split(2500), q.test_y.split(2500))
        loop = Loop(model, opt, batches, {"validation": lambda: parts(validation), "test": lambda: parts(d)})
        better = 1
    elif task == "chars":
        text = chars.texts(DATA, 30_000, 6_400)
        p = variant["p"]
        model = Decoder(text[3], 96, 6, 3, 64, dropout=p["drop"] if drop else 0.0)
        if thin: model = thin_of(task, model, {k: v for k, v in p.items() if k != "drop"}, boost, torch.zeros(2, 64, dtype=torch.long))
        opt = optimizer_of(okind, model.parameters(), lr, 0.01 if okind == "adamw" else 0.0)
        if thin: mrreg.attach(opt, model, seed=seed)
        torch.manual_seed(seed)
        window = torch.arange(65)
        def order(g):
            return [each[:, None] + window for each in torch.randint(len(text[0]) - 64, (100, 8), generator=g)]
        def warm(step):
            for g in opt.param_groups: g["lr"] = lr * min((step + 1) / 100, 1.0)
        batches = Batches(order, lambda i: (text[0][i[:, :-1]], text[0][i[:, 1:]]), torch.Generator().manual_seed(seed))
        loop = Loop(model, opt, batches, {"validation": lambda: chars.rows(text[1]), "test": lambda: chars.rows(text[2])}, mean_loss, before=warm)
        better = -1
    else:
        p = variant["p"]
        if task == "vit": model = VisionTransformer(128, 4, 2, p["drop"] if drop else 0.0)
        else: model = resnet(16, 1, p["drop"] if drop else 0.0)
        if thin: model = thin_of(task, model, {k: v for k, v in p.items() if k != "drop"}, boost, torch.rand(2, 3, SIZE, SIZE))
        opt = optimizer_of(okind, model.parameters(), lr, 0.01 if okind == "adamw" else (5e-4 if task == "resnet" else 0.0))
        if thin: mrreg.attach(opt, model, seed=seed)
        torch.manual_seed(seed)
        job = [None]
        class J: pass
        j = J(); j.steps, j.device, j.data_dir = job_steps, torch.device("cpu"), DATA
        loop = image_loop(Draw(1000), model, opt, seed, j)
        better = 1
    if thin: wrap_step(loop, opt, method)
    start = time.process_time(); curve = []
    points = {"chars": 4, "digits": 2, "digits5": 2}.get(task, 1)
    spent = 0.0
    for s in range(job_steps):
        t = time.process_time(); loop.step(); spent += time.process_time() - t
        if (s + 1) % (job_steps // points) == 0:
            curve.append([s + 1, float(loop.evaluate("validation")), float(loop.evaluate("test"))])
    return {"curve": curve, "cpu_seconds": spent, "steps": job_steps}

V = {  # what is left out by default, and more
    "digits": {"default": {"hidden": 0.5}, "less": {"hidden": 0.25}, "inputs": {"inputs": 0.5, "hidden": 0.5}},
    "digits5": {"default": {"hidden": 0.5}, "less": {"hidden": 0.25}, "inputs": {"inputs": 0.5, "hidden": 0.5}},
    "chars": {"default": {"hidden": 0.25, "heads": 0.25, "drop": 0.2}, "more": {"hidden": 0.5, "heads": 0.33, "drop": 0.1}},
    "vit": {"default": {"hidden": 0.25, "heads": 0.25, "drop": 0.1}, "more": {"hidden": 0.5, "heads": 0.25, "drop": 0.2}},
    "resnet": {"default": {"channels": 0.125, "drop": 0.1}, "more": {"channels": 0.25, "drop": 0.2}},
}
LR = {("digits", "sgd"): 0.1, ("digits", "sgdm"): 0.01, ("digits", "adamw"): 1e-3, ("digits5", "sgdm"): 0.01, ("digits5", "adamw"): 1e-3,
      ("chars", "adamw"): 2e-3, ("chars", "sgdm"): 0.1, ("vit", "adamw"): 1e-3, ("vit", "sgdm"): 0.05, ("resnet", "sgdm"): 0.1, ("resnet", "adamw"): 2e-3}
ALL = ["none", "held", "boost k", "dropout", "fresh", "decay", "reset"]
def plan():
    for seed in range(3):
        for task, okind in (("digits", "adamw"), ("digits", "sgdm"), ("digits", "sgd"), ("vit", "adamw")):
            for method in ALL:
                yield task, okind, method, "default", seed
            yield task, okind, "held", "less", seed
commit = subprocess.run(["git", "-C", str(Path(mrreg.__file__).parent.parent), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()[:12]
only = sys.argv[2] if len(sys.argv) > 2 else ""
for task, okind, method, variant, seed in plan():
    key = (task, okind, method, variant, seed)
    if key in done or (only and task not in only.split(",")): continue
    begun = time.time()
    try:
        r = train(task, okind, LR[task, okind], method, V[task] and {"p": V[task][variant]}, seed)
    except Exception as e:
        r = {"error": repr(e)[:300]}
    with OUT.open("a") as f:
        f.write(json.dumps({"key": key, "lr": LR[task, okind], "p": V[task][variant], "wall": time.time() - begun, "commit": commit, "torch": torch.__version__, **r}) + "\n")
    print(key, r.get("curve", r)[-1] if "curve" in r else r, round(time.time() - begun, 1), flush=True)
