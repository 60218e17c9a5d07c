#ifndef AFT_MODEL_MIXERS_STATE_SPECS_H_
#define AFT_MODEL_MIXERS_STATE_SPECS_H_

#include "model/kernels/aft.h"
#include "model/kernels/attention.h"
#include "model/kernels/conv.h"
#include "model/state/state_pool.h"

namespace aft {

// What the mixers keep of a sequence, the same on every device.
StateSpec AftStateSpec(const kernels::AftStateLayout& layout);
StateSpec ConvStateSpec(const kernels::ConvStateLayout& layout);
StateSpec AttentionStateSpec(const kernels::AttentionParams& params);

}  // namespace aft

#endif  // AFT_MODEL_MIXERS_STATE_SPECS_H_
