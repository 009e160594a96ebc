// A step of a loss on pairs on the CPU, from embeddings and labels to the loss and all gradients, in one
// call:
//
//     L = 1/N sum_i w_i (positive_i / positive_divisor + negative_i / negative_divisor)
#pragma once

#include "pairs/cpu_whole.h"

namespace robustdml::cpu {

// Labels (count,) as 32 bits that are equal where these are; kAbsent stays what it is.
void narrow_labels(const std::int64_t* labels, std::int64_t count, PairLabel* narrow);

// N, at least 1.
enum class Divisor : std::int64_t {
    samples,  // all samples
    present,  // those whose weight is not 0
    terms,    // of hinges, each side its own: terms above 0
    above,    // losses above 0; without a negative pair the loss is 0
    pairs,    // positive pairs
};

// What all steps of one signature have in common, beside a PairShape.
struct PairFormula {
    std::int64_t divisor;  // a Divisor
    double positive_divisor;
    double negative_divisor;
    double scale;              // of a contrast: logits are scale s + bias, where none are learnt
    bool itself;               // candidate i is anchor i, or another view of it
    bool both_sides;           // of tiles: each candidate has a loss over the anchors, too
    bool bool_weights;         // weights are truth values, else of type T
    bool candidate_weights;    // weights are those of the candidates, too
    bool absent_zero_weights;  // a sample of weight 0 is in no set
    bool has_ignored;          // candidates of label `ignored` are in no set
    std::int64_t ignored;
    std::int64_t labels_each;  // labels of a sample, K
    std::int64_t ids_each;     // ids of a sample, I; 0: none
    bool ids_keep_positives;   // ids are of negatives alone

    static constexpr auto fields() {
        return std::tuple{
            field("divisor", &PairFormula::divisor),
            field("positive_divisor", &PairFormula::positive_divisor),
            field("negative_divisor", &PairFormula::negative_divisor),
            field("scale", &PairFormula::scale),
            field("itself", &PairFormula::itself),
            field("both_sides", &PairFormula::both_sides),
            field("bool_weights", &PairFormula::bool_weights),
            field("candidate_weights", &PairFormula::candidate_weights),
            field("absent_zero_weights", &PairFormula::absent_zero_weights),
            field("has_ignored", &PairFormula::has_ignored),
            field("ignored", &PairFormula::ignored),
            field("labels_each", &PairFormula::labels_each),
            field("ids_each", &PairFormula::ids_each),
            field("ids_keep_positives", &PairFormula::ids_keep_positives),
        };
    }
};

// `problem` without addresses. False where a value needs another way or an error, which that way has.
template <class T, class Problem>
bool pair_step(const PairShape<T>& shape, const PairFormula& formula, const Problem& problem,
               const T* X,                            // (n, D) in
               const T* candidates,                   // (m, D) in; null: the anchors
               const std::int64_t* labels,            // (n, K) in; null: i
               const std::int64_t* candidate_labels,  // (m, K) in; null: those of the anchors
               const void* weights,                   // (n,) in; null: 1
               const T* logit_scale,                  // () in: logarithm of the scale; null: step.scale
               const T* logit_bias,                   // () in; null: 0
               const std::int64_t* ids,               // (n, I) in; null: none
               const std::int64_t* candidate_ids,     // (m, I) in; null: those of the anchors
               T* dX,                                 // (n, D) out, or null; as all below
               T* dcandidates,                        // (m, D) out
               T* dlogit_scale,                       // () out
               T* dlogit_bias,                        // () out
               T* loss);                              // () out, never null

}  // namespace robustdml::cpu
