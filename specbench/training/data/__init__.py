"""What is learnt from: prompts, answers, and the states that decoding goes through."""
