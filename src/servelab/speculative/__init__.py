"""Who proposes draft tokens, and how many; the target model decides which of them stand."""
