#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// AFT_RETURN_IF_ERROR(expr): returns expr's absl::Status from the enclosing function unless OK.
#define AFT_RETURN_IF_ERROR(expr)                               \
  do {                                                          \
    if (absl::Status aft_status_ = (expr); !aft_status_.ok()) { \
      return aft_status_;                                       \
    }                                                           \
  } while (false)

// AFT_ASSIGN_OR_RETURN(lhs, expr): assigns the value of expr's absl::StatusOr, or returns its
// status.
#define AFT_ASSIGN_OR_RETURN(lhs, expr) \
  AFT_ASSIGN_OR_RETURN_IMPL_(AFT_STATUS_CONCAT_(aft_status_or_, __LINE__), lhs, expr)
#define AFT_ASSIGN_OR_RETURN_IMPL_(var, lhs, expr) \
  auto var = (expr);                               \
  if (!var.ok()) return std::move(var).status();   \
  lhs = *std::move(var)
#define AFT_STATUS_CONCAT_(a, b) AFT_STATUS_CONCAT_INNER_(a, b)
#define AFT_STATUS_CONCAT_INNER_(a, b) a##b
