#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "inference/grpc_service.pb.h"
#include "inference/model_config.pb.h"
#include "server/registry/model_registry.h"

// The inputs and outputs of a model as tensors.
namespace aft::server::oip {

struct TensorSpec {
  const char* name;
  const char* datatype;
  inference::DataType data_type;
  std::vector<int64_t> dims;  // without the batch dimension; -1: any size
};

struct ModelTensors {
  int32_t max_batch_size = 0;  // 0: no batch dimension
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;

  bool HasInput(absl::string_view name) const;
  bool HasOutput(absl::string_view name) const;
};

// Whether the model has no vocabulary: its inputs and outputs are vectors.
inline bool IsBareMixer(const ServedModel& model) {
  return model.encode != nullptr && model.info.vocab_size == 0;
}

// Whether the vectors of the model are logits.
inline bool IsClassifier(const ServedModel& model) { return !model.info.labels.empty(); }

// Whether a request may have any number of responses, as Triton calls it: a language model.
inline bool IsDecoupled(const ServedModel& model) { return model.generate != nullptr; }

ModelTensors TensorsOf(const ServedModel& model);

inference::ModelMetadataResponse DescribeModel(const ServedModel& model);
inference::ModelConfig ConfigOf(const ServedModel& model);

}  // namespace aft::server::oip
