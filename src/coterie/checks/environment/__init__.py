"""`coterie check-env`: checks environments of Gymnasium's, PettingZoo's and Coterie's interfaces."""
