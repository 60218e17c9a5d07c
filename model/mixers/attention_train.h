#ifndef AFT_MODEL_MIXERS_ATTENTION_TRAIN_H_
#define AFT_MODEL_MIXERS_ATTENTION_TRAIN_H_

#include "ATen/core/Tensor.h"
#include "model/mixers/train_form.h"

namespace aft {

// The attentions of TrainForm: softmax over the tokens that a query sees.

// softmax(q.k / sqrt(head width)) v by LibTorch's fused kernel.
at::Tensor DotProductTrain(const MixerConfig& config, const at::Tensor& packed,
                           const TrainFormOptions& options);

}  // namespace aft

#endif  // AFT_MODEL_MIXERS_ATTENTION_TRAIN_H_
