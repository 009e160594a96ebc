// ROBUSTDML_CLONES marks a hot function: compiled once per vector width, the widest one the machine has is
// chosen at load.
#pragma once

#if defined(ROBUSTDML_TARGET_CLONES)
#define ROBUSTDML_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ROBUSTDML_CLONES
#endif
