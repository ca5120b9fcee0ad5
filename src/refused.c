/* refused.c: what people write of variants that have no kernel with one pass over the keys, and why they have none. */
#include "expr.h"

static const char threshold[] = "which keys count, and by how much, depends on a threshold that has to be found for each query from all of its "
                                "scores: several passes over the keys";
static const char ordered[] = "this runs over the keys between key and query in order (stick-breaking, contextual positions); a kernel takes tiles "
                              "of keys by themselves, and in one pass "
                              "only what does not depend on their order";
static const char others[] = "this takes scores of other heads, queries or keys (talking heads, convolution of scores, selective attention); where a "
                             "score is computed the others are not at hand";
static const char state[] = "what a token adds depends on a state that every token before it has changed (linear attention, delta rule), not on "
                            "query and key alone; no kernel "
                            "over tiles of keys computes that";
static const char two_weights[] = "its weights are not those that its denominator sums up, which no law of this version covers";

static const struct {
    RefusedAs as;
    const char *name, *why;
} refused[] = {
    {REFUSED_NORMALIZER, "entmax", threshold},      {REFUSED_NORMALIZER, "entmax15", threshold},
    {REFUSED_NORMALIZER, "sparsemax", threshold},   {REFUSED_NORMALIZER, "topk", threshold},
    {REFUSED_NORMALIZER, "top_k", threshold},       {REFUSED_NORMALIZER, "stick_breaking", ordered},
    {REFUSED_NORMALIZER, "stickbreaking", ordered}, {REFUSED_NORMALIZER, "delta", state},
    {REFUSED_NORMALIZER, "delta_rule", state},      {REFUSED_NORMALIZER, "gated_delta", state},
    {REFUSED_NORMALIZER, "softpick", two_weights},  {REFUSED_FUNCTION, "scan", ordered},
    {REFUSED_FUNCTION, "cumsum", ordered},          {REFUSED_FUNCTION, "cumprod", ordered},
    {REFUSED_FUNCTION, "cummax", ordered},          {REFUSED_FUNCTION, "topk", threshold},
    {REFUSED_FUNCTION, "top_k", threshold},         {REFUSED_FUNCTION, "sort", threshold},
    {REFUSED_FUNCTION, "rank", threshold},          {REFUSED_FUNCTION, "entmax", threshold},
    {REFUSED_FUNCTION, "sparsemax", threshold},     {REFUSED_FUNCTION, "conv", others},
    {REFUSED_FUNCTION, "conv2d", others},           {REFUSED_FUNCTION, "delta", state},
    {REFUSED_FUNCTION, "delta_rule", state},        {REFUSED_SUBSCRIPT, "s", others},
};

const char *ag_refused(RefusedAs as, Str name) {
    for (int i = 0; i < LEN(refused); i++)
        if (refused[i].as == as && ag_str_is(name, refused[i].name)) return refused[i].why;
    return NULL;
}
