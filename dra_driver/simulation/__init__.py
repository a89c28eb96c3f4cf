"""A cluster without hardware: API server, scheduler, claim controller and kubelets."""
