// EXPECT_ERROR(statement, Type, text): it throws exactly the error class `Type`, and what() holds
// `text`.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <typeinfo>

#include "dsckpt/error.h"

#define EXPECT_ERROR(statement, Type, text)                                                 \
  try {                                                                                     \
    statement;                                                                              \
    ADD_FAILURE() << #statement " throws nothing";                                          \
  } catch (const Type& error) {                                                             \
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();     \
  } catch (const std::exception& error) {                                                   \
    ADD_FAILURE() << #statement " throws " << typeid(error).name() << ": " << error.what(); \
  }
