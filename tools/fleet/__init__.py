"""A fleet of AFT servers, simulated: tools/fleet_sim.py is its program, deploy/sizing.md its results."""
