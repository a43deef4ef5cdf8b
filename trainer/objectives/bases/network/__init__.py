"""What an objective knows of a network. `trainer.model` builds networks, and stands above objectives; what both need is here.

- `position_limits`: how many tokens it has positions for, and where a text is cut for it
- `output_layer`: the layer that gives a logit for each label or number
- `standardization`: numbers as a head learns them, and in their units
- `alignment`: weights at addresses that a new tensor could have
"""
