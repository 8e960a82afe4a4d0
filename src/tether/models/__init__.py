"""Models: the policy being trained, its value and reward heads, adapters, the frozen reference, and the files they live in.

    files        what may be loaded (safetensors only), dropout and padding faults corrected on load; fingerprints
    trunk        hidden states of a padded batch, and log-probabilities of live tokens from them
    packed       rows without pads; attention, elementwise, head: the passes that keep less; classes: for which families
    policy       the causal model that is trained; reference: its frozen past; adapters: LoRA; snapshot: the policy of the last publish
    value        the scalar head and the critic; reward: the reward model
    tiny, fetch  a model made on the spot, the one from the wheel; resolve: names -> folders; convert, card, memory

Nothing is imported here, so that `tether.models.fetch` and `tether.models.resolve` cost no torch.
"""
