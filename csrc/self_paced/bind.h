// The descent of the sample weights: self_paced_sweep_f32 and _f64. It is sequential, so it runs on the host
// alone.
#pragma once

#include "common/bind.h"
#include "self_paced/cpu.h"

namespace robustdml {

template <class T>
void bind_self_paced_of(py::module_& m, const char* suffix) {
    using py::arg;
    m.def((std::string("self_paced_sweep_") + suffix).c_str(),
          [](Address weights, Address positive, Address negative, Address classes, Address starts,
             Address rates, std::int64_t N, std::int64_t C, double lam, double mu, double decay,
             std::int64_t classes_per_step, std::int64_t samples_per_class, std::uint64_t seed,
             std::int64_t steps) {
              py::gil_scoped_release release;
              cpu::self_paced_sweep<T>({at<T>(weights), at<const T>(positive), at<const T>(negative),
                                        at<const std::int64_t>(classes), at<const std::int64_t>(starts),
                                        at<const double>(rates), N, C, lam, mu, decay, classes_per_step,
                                        samples_per_class, seed, steps});
          },
          py::kw_only(), arg("weights"), arg("positive"), arg("negative"), arg("classes"), arg("starts"),
          arg("rates"), arg("N"), arg("C"), arg("lam"), arg("mu"), arg("decay"), arg("classes_per_step"),
          arg("samples_per_class"), arg("seed"), arg("steps"));
}

inline void bind_self_paced(py::module_& m) {
    bind_self_paced_of<float>(m, "f32");
    bind_self_paced_of<double>(m, "f64");
}

}  // namespace robustdml
