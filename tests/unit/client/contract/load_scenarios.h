#pragma once

#include <string>
#include <vector>

#include "contract/scenario.pb.h"

namespace aft::client::contract {

// The scenarios of a .textproto, with the defaults of what they leave open. One that varies is
// there once for each combination.
std::vector<Scenario> LoadScenarios(const std::string& path);

}  // namespace aft::client::contract
