"""Mount points that work needs: mounted, and answering."""
