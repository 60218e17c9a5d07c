#pragma once

#include <string>
#include <vector>

#include "contract/scenario.pb.h"

namespace aft::client::contract {

// Returns the scenarios of a .textproto, with defaults for unset fields. A scenario that varies is
// returned once for each combination.
std::vector<Scenario> LoadScenarios(const std::string& path);

}  // namespace aft::client::contract
