"""What we claim about speed and size, runnable. Nothing else imports this package."""
