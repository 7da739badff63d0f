from troupe import Array, models, pipeline


@pipeline
def classification(file: Array["UINT8", -1]) -> dict:
    image = models.image_decode(file=file)
    logits = models.classifier(pixel_values=models.pixels(image=image))
    best = models.best_labels(logits=logits)
    return {"label": best.label, "score": best.score}
