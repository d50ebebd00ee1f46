"""Callbacks for trainers, one module for each: importing this package imports none of them."""
