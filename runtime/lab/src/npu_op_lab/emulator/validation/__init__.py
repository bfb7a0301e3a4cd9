"""The emulator's modelled times beside every figure that others have published from hardware."""
