"""What is seen of labs: their nodes are asked, and every view is drawn from the answers.

``round`` puts the questions of all views to the nodes of labs, at the same time and within a limit;
what it returns for a lab is an ``Observation``.
"""
