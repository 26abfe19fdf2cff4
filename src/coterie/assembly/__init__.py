"""The whole configuration is opened here: settings in, environment, teams, learners and loggers out."""
