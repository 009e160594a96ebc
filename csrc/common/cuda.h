// Facts that a launch depends on: the versions of CUDA, 1000·major + 10·minor each, and the device.
#pragma once

namespace robustdml::cuda {

// Of the toolkit that built this module.
int runtime_version();
// The newest that the driver supports; 0 without a driver.
int driver_version();
// Makes a device current in this module's runtime, which is not the one that torch links; throws if there is
// none.
void set_device(int index);

}  // namespace robustdml::cuda
