// A step of an optimiser on the rows of P, taken within the sweep that makes their gradient G.
//
//     AdamW     M1 <- M1 + (1 - beta1) (G - M1),  M2 <- beta2 M2 + (1 - beta2) G^2
//               P  <- (1 - lr weight_decay) P - step_size M1 / (sqrt(M2) inverse_root + eps)
//     SGD       G  <- G + weight_decay P,  M1 <- momentum M1 + (1 - dampening) G, in the first step M1 <- G
//               P  <- P - lr M1, with Nesterov's P - lr (G + momentum M1), without momentum P - lr G
//     Adagrad   M1 <- M1 + mean over D of (G + weight_decay P)^2, one number a row, r = lr / (sqrt(M1) + eps)
//               P  <- P - r (G + weight_decay P)
//     radians   a step on the row of length 1: with |P| G in place of G, and |P| times as far. Adagrad
//               M1 <- M1 + |P|^2 |G + weight_decay P|^2, r = lr |P|^2 / (sqrt(M1) + eps), so that the first
//               one turns a row by lr; AdamW in addition with lr / sqrt(D) in place of lr but in the weight
//               decay
#pragma once

#include <cstdint>
#include <tuple>

#include "common/fields.h"

namespace robustdml {

enum class UpdateKind { adamw, sgd, adagrad };

template <class T>
struct ProxyUpdate {
    UpdateKind kind;
    void* P;   // (rows, D) in/out: T or bfloat16, what the sweep reads, strided as there
    void* M1;  // in/out: T or bfloat16; AdamW, SGD (rows, D), strided as P, null for SGD without
               // momentum; Adagrad (rows,), always T
    void* M2;  // (rows, D) in/out, as M1: AdamW alone
    // Values in bfloat16 are rounded at random, so that they are right in the mean.
    bool bfloat16;          // whether M1 and M2 are
    bool bfloat16_proxies;  // whether P is
    std::uint64_t key;      // of the random numbers of this step
    double lr;
    double weight_decay;
    double eps;
    double beta1;
    double beta2;
    double step_size;     // lr / (1 - beta1^step)
    double inverse_root;  // 1 / sqrt(1 - beta2^step)
    double momentum;
    double dampening;
    bool nesterov;
    bool first_step;
    bool radians;
    bool* skipped;  // (chunks,) out: true where a chunk has NaN or inf in G and was left as it is

    static constexpr auto fields() {
        return std::tuple{
            field("kind", &ProxyUpdate::kind),
            field("P", &ProxyUpdate::P),
            optional_field("M1", &ProxyUpdate::M1),
            optional_field("M2", &ProxyUpdate::M2),
            optional_field("bfloat16", &ProxyUpdate::bfloat16),
            optional_field("bfloat16_proxies", &ProxyUpdate::bfloat16_proxies),
            optional_field("key", &ProxyUpdate::key),
            field("lr", &ProxyUpdate::lr),
            field("weight_decay", &ProxyUpdate::weight_decay),
            optional_field("eps", &ProxyUpdate::eps),
            optional_field("beta1", &ProxyUpdate::beta1),
            optional_field("beta2", &ProxyUpdate::beta2),
            optional_field("step_size", &ProxyUpdate::step_size),
            optional_field("inverse_root", &ProxyUpdate::inverse_root),
            optional_field("momentum", &ProxyUpdate::momentum),
            optional_field("dampening", &ProxyUpdate::dampening),
            optional_field("nesterov", &ProxyUpdate::nesterov),
            optional_field("first_step", &ProxyUpdate::first_step),
            optional_field("radians", &ProxyUpdate::radians),
            field("skipped", &ProxyUpdate::skipped),
        };
    }
};

}  // namespace robustdml
