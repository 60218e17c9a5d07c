#include "tests/property/mixer_harness.h"

namespace aft {

const MixerDevice& TestedMixers() { return CpuMixers(); }

}  // namespace aft
