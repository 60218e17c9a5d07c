#pragma once

#include "model/config/config.h"
#include "tests/support/mixer_of.h"

namespace aft {

// A small language model of bytes.
inline NetworkConfig TinyNetwork() {
  NetworkConfig config;
  config.vocab_size = 256;
  config.d_model = 16;
  config.n_layers = 2;
  config.d_ff = 32;
  config.mixer = MixerOf("aft_local window=4 prefix_block=16");
  return config;
}

}  // namespace aft
