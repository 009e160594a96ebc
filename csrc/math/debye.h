// The logarithm of Debye's series: log(sum of U_k(p) / v^k) = sum over k of c_k(q) / r^k, where r^2 = v^2 +
// kappa^2, q = (v/r)^2 and c_k is a polynomial of degree k.
#pragma once

#include "math/portable.h"

namespace robustdml {

constexpr int kDebyeTerms = 10;

// c_kj at [k - 1][j]; exact rationals from the recursion of U_k (DLMF 10.41.9).
constexpr double kLogDebye[kDebyeTerms][kDebyeTerms + 1] = {
    {1.0 / 8, -5.0 / 24},
    {1.0 / 16, -3.0 / 8, 5.0 / 16},
    {25.0 / 384, -531.0 / 640, 221.0 / 128, -1105.0 / 1152},
    {13.0 / 128, -71.0 / 32, 531.0 / 64, -339.0 / 32, 565.0 / 128},
    {1073.0 / 5120, -50049.0 / 7168, 186821.0 / 4608, -44899.0 / 512, 82825.0 / 1024, -82825.0 / 3072},
    {103.0 / 192, -405.0 / 16, 1677.0 / 8, -5389.0 / 8, 65385.0 / 64, -11805.0 / 16, 19675.0 / 96},
    {375733.0 / 229376, -3407083.0 / 32768, 38038059.0 / 32768, -168434443.0 / 32768, 1852155413.0 / 163840,
     -432038457.0 / 32768, 256406305.0 / 32768, -1282031525.0 / 688128},
    {23797.0 / 4096, -244539.0 / 512, 7069979.0 / 1024, -20526309.0 / 512, 243859359.0 / 2048,
     -101540765.0 / 512, 192309147.0 / 1024, -48436755.0 / 512, 80727925.0 / 4096},
    {55384775.0 / 2359296, -6999290379.0 / 2883584, 2888157483.0 / 65536, -63676527235.0 / 196608,
     162545648553.0 / 131072, -360824073279.0 / 131072, 724227025637.0 / 196608, -192361155885.0 / 65536,
     336696124375.0 / 262144, -1683480621875.0 / 7077888},
    {2180461.0 / 20480, -27703287.0 / 2048, 1233662049.0 / 4096, -1396460847.0 / 512, 26678079073.0 / 2048,
     -188684363709.0 / 5120, 133349678685.0 / 2048, -37247429635.0 / 512, 204913633365.0 / 4096,
     -39629535375.0 / 2048, 13209845125.0 / 4096},
};

// The coefficients of the series (order 0), of what it becomes in A (order 1) and in A' (order 2).
template <int order, int k, int j>
constexpr double kDebye =
    kLogDebye[k - 1][j] * (order >= 1 ? k + 2 * j : 1) * (order >= 2 ? k + 2 + 2 * j : 1);

template <int order, int k, int j, class T>
ROBUSTDML_HD T debye_row(T q) {
    constexpr T coefficient = T(kDebye<order, k, j>);
    if constexpr (j == k)
        return coefficient;
    else
        return coefficient + q * debye_row<order, k, j + 1>(q);
}

// Sum over k of c_k(q) / r^k, from `first` to `last`, times r^(first - 1).
template <int order, int last, int first = 1, class T>
ROBUSTDML_HD T debye_series(T inverse_r, T q) {
    const T row = debye_row<order, first, 0>(q);
    if constexpr (first == last)
        return inverse_r * row;
    else
        return inverse_r * (row + debye_series<order, last, first + 1>(inverse_r, q));
}

}  // namespace robustdml
