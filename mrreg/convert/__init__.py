"""Put masks into existing models, and take them out."""
