"""Where classes were when pipelines were saved by tfos_ml before its files were moved; part of its search path."""
