"""Read strategies: how a kind of decision model turns a request into one read per question.

A strategy joins a prompt format, the engine's programs and a limit on questions. It works in two steps, because they
belong to different threads: ``plan`` writes and checks the prompts in the caller's, ``run`` computes in the engine's.

    labels        each question is a prompt; the state's part is read once and shared, each question pays for its own
    joint_schema  all questions are one prompt and are scored together, so nothing is shared between questions: every
                  question's answer may depend on its siblings; a long state is shared between requests
    answer_codes  each question is a prompt; the state is shared where attention is causal, and nothing where it is not
"""
