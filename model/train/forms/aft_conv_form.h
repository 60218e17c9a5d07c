#ifndef AFT_MODEL_TRAIN_FORMS_AFT_CONV_FORM_H_
#define AFT_MODEL_TRAIN_FORMS_AFT_CONV_FORM_H_

#include "ATen/core/Tensor.h"
#include "model/train/forms/train_form.h"

namespace aft {

// AFT-conv (arXiv 2105.14103, eq. 6 and 8). Causal: in tiles like AftParallel, O(T window hid).
// Bidirectional and on a grid: with weights for every pair of tokens. Sums of positive terms only:
// eq. 6 as it stands, with exp(w) - 1, cancels. Arguments and result as TrainForm's.
at::Tensor AftConvTrain(const MixerConfig& config, const at::Tensor& packed,
                        const MixerTables& tables, const TrainFormOptions& options);

}  // namespace aft

#endif  // AFT_MODEL_TRAIN_FORMS_AFT_CONV_FORM_H_
