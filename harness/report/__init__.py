"""What people look at: text, figures and pages, made from analysis results."""
