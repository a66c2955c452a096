"""What every training run needs: configuration, data, state, the learner."""
