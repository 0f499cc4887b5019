"""Runs pods as processes of this machine: what kubelet, scheduler and DNS are to a cluster."""
