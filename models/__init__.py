"""Networks: backbones over timm, preprocessing, and the manifest of released artifacts."""
