#ifndef AFT_MODEL_TRAIN_FORMS_ATTENTION_FORM_H_
#define AFT_MODEL_TRAIN_FORMS_ATTENTION_FORM_H_

#include "ATen/core/Tensor.h"
#include "model/train/forms/train_form.h"

namespace aft {

// The attentions of TrainForm: a softmax over the tokens that a query sees. Formulas at MixerKind.

at::Tensor DotProductTrain(const MixerConfig& config, const at::Tensor& packed,
                           const TrainFormOptions& options);

// Vectors shorter than 1e-6 count as that long.
at::Tensor CosineTrain(const MixerConfig& config, const at::Tensor& packed,
                       const TrainFormOptions& options);

// Takes T^2 heads score_width numbers at once.
at::Tensor AdditiveTrain(const MixerConfig& config, const at::Tensor& packed,
                         const MixerTables& tables, const TrainFormOptions& options);

at::Tensor LocationTrain(const MixerConfig& config, const at::Tensor& packed,
                         const MixerTables& tables, const TrainFormOptions& options);

// As a prompt is read: full_decode changes nothing.
at::Tensor BlockLocalTrain(const MixerConfig& config, const at::Tensor& packed,
                           const TrainFormOptions& options);

}  // namespace aft

#endif  // AFT_MODEL_TRAIN_FORMS_ATTENTION_FORM_H_
