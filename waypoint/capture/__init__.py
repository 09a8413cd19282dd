"""The owner of captures: taking, holding, bringing back, sweeping."""
