from troupe import models, pipeline


@pipeline
def embedding(text: str) -> dict:
    tokens = models.tokens(text=text)
    hidden = models.encoder(
        input_ids=tokens.input_ids,
        attention_mask=tokens.attention_mask,
        token_type_ids=tokens.token_type_ids,
    )
    vectors = models.sentence_vectors(
        last_hidden_state=hidden.last_hidden_state, attention_mask=tokens.attention_mask
    )
    return {"embedding": vectors}
