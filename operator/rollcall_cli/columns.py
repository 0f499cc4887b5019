"""Tables of a job's status: of each column its field, and its heading."""

EPOCHS = {
    "epoch": "epoch",
    "time": "time",
    "cause": "cause",
    "members": "members",
    "message": "what changed",
}
SESSIONS = {
    "session": "session",
    "time": "time",
    "cause": "cause",
    "seconds": "seconds",
    "members": "members",
    "message": "detected by",
}
POOLS = {"name": "pool", "replicas": "wanted", "ready": "ready", "inSync": "in sync"}
