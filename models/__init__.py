"""What is computed: backbones over timm, and the manifest of a released artefact."""
