#ifndef AFT_MODEL_TRAIN_FORMS_AFT_DENSE_FORM_H_
#define AFT_MODEL_TRAIN_FORMS_AFT_DENSE_FORM_H_

#include "ATen/core/Tensor.h"
#include "model/train/forms/train_form.h"

namespace aft {

// AFT with weights for every pair of tokens, O(T^2 hid): AFT-full (arXiv 2105.14103, eq. 2), and
// the bidirectional AFT-local and AFT-simple. Arguments and result as TrainForm's.
at::Tensor AftDense(const MixerConfig& config, const at::Tensor& packed, const MixerTables& tables,
                    const TrainFormOptions& options);

}  // namespace aft

#endif  // AFT_MODEL_TRAIN_FORMS_AFT_DENSE_FORM_H_
