"""Differential privacy of what a client sends: how much one sample changes it, noise, and an accountant for epsilon.

The protected unit is one sample of one client: it is there or it is not ("add or remove"). docs/secure-sum.md says what
this needs of the run. Source of the definitions: Dwork and Roth, "The Algorithmic Foundations of Differential Privacy",
2014.
"""
