"""Who starts the processes that ranks need, and who ends them: fork servers, launchers, Slurm, engines and the controller."""
