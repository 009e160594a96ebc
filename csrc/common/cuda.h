// The versions of CUDA that a launch depends on, 1000·major + 10·minor each.
#pragma once

namespace robustdml::cuda {

// Of the toolkit that built this module.
int runtime_version();
// The newest that the driver supports; 0 without a driver.
int driver_version();

}  // namespace robustdml::cuda
