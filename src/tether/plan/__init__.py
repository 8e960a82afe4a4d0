"""What a run will need before it starts, and what it took. No torch here.

    model     sizes of a model from its files
    memory    bytes that each stage will hold
    machine   what there is, and what a process held at its highest
"""
