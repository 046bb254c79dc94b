"""The live screen of `penstock top`: what is read, what of it is shown, and what keys do."""
