#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/api/load.h"
#include "tests/support/fake_encoder_runner.h"
#include "tests/support/fake_model_runner.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/step_gate.h"

namespace aft {

// A gate at which a test holds loads of models: its steps are loads.
class LoadGate : public StepGate {
 public:
  using StepGate::Enter;
};

// Makes fake models with the sizes that a LoadOptions asks for, and has their controls.
struct FakeModels {
  FakeModelRunner::Options options = {};
  FakeEncoderRunner::Options encoder_options = {};
  std::shared_ptr<FakeModelControl> control = std::make_shared<FakeModelControl>();
  std::shared_ptr<FakeEncoderControl> encoder_control = std::make_shared<FakeEncoderControl>();

  std::shared_ptr<LoadGate> loads = std::make_shared<LoadGate>();
  FakeTokenizer::Hook before_encoding = {};

  // Makes an encoder for the path "encoder", with a tokenizer unless it is a bare mixer or takes
  // images. For every other path it makes a language model.
  LoadedModel Load(const LoadOptions& load) const {
    loads->Enter();
    LoadedModel model;
    if (load.checkpoint_dir != "encoder" ||
        (encoder_options.vocab_size > 0 && encoder_options.max_image_width == 0)) {
      model.tokenizer =
          std::make_shared<FakeTokenizer>(std::vector<std::string>(), before_encoding);
    }
    if (load.checkpoint_dir == "encoder") {
      FakeEncoderRunner::Options sized = encoder_options;
      sized.max_batch_rows = load.max_batch_rows;
      sized.max_batch_tokens = load.max_batch_tokens;
      model.encoder = std::make_unique<FakeEncoderRunner>(sized, encoder_control);
    } else {
      FakeModelRunner::Options sized = options;
      sized.slots = load.slots;
      sized.max_step_tokens = load.max_step_tokens;
      model.runner = std::make_unique<FakeModelRunner>(sized, control);
    }
    return model;
  }
};

}  // namespace aft
