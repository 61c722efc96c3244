//! Macros with Jinja2's calling convention: a missing argument differs from an undefined one, and extra
//! arguments go to `varargs` and `kwargs`.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};

use super::names::CALLER;

/// Placeholder for an omitted argument that has a default. It is a bytes value, which templates cannot
/// create.
const MISSING: &[u8] = b"missing";

/// True if a macro was called without this argument.
pub fn is_missing(value: &Value) -> bool {
    value.kind() == ValueKind::Bytes
}

#[derive(Debug)]
struct Macro {
    /// minijinja's macro, without defaults; it takes the special arguments after those of the template.
    inner: Value,
    name: String,
    arguments: Vec<String>,
    /// Number of arguments without a default.
    n_required: usize,
    /// `varargs` and `kwargs`, if the macro uses them.
    specials: Vec<String>,
}

/// Wraps minijinja's macro `inner`.
///
/// # Errors
/// If `inner` has no name or arguments.
pub fn wrapped(inner: &Value, n_required: usize, specials: Vec<String>) -> Result<Value, Error> {
    let arguments = inner.get_attr("arguments")?;
    let mut arguments: Vec<String> = arguments.try_iter()?.map(|name| name.to_string()).collect();
    arguments.truncate(arguments.len().saturating_sub(specials.len()));
    let name = inner.get_attr("name")?.to_string();
    Ok(Value::from_object(Macro { inner: inner.clone(), name, arguments, n_required, specials }))
}

impl Macro {
    fn has(&self, special: &str) -> bool {
        self.specials.iter().any(|name| name == special)
    }
}

impl Object for Macro {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "name" if self.name == CALLER => Some(Value::from(())),
            "name" => Some(Value::from(self.name.as_str())),
            "arguments" => {
                let names = self.arguments.iter().map(|name| Value::from(name.as_str()));
                Some(Value::from(Tuple::from(names.collect::<Vec<_>>())))
            }
            "catch_varargs" => Some(Value::from(self.has("varargs"))),
            "catch_kwargs" => Some(Value::from(self.has("kwargs"))),
            "caller" => self.inner.get_attr("caller").ok(),
            _ => None,
        }
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let (Rest(given), named): (Rest<Value>, Kwargs) = from_args(args)?;
        let mut given = given.into_iter();
        let mut values = Vec::with_capacity(self.arguments.len() + self.specials.len() + 1);
        let mut taken = Vec::new();
        for (at, name) in self.arguments.iter().enumerate() {
            values.push(match given.next() {
                Some(value) => value,
                None if named.has(name) => {
                    taken.push(name.as_str());
                    named.get(name)?
                }
                None if at < self.n_required => Value::UNDEFINED,
                None => Value::from_bytes(MISSING.to_vec()),
            });
        }
        let mut caller = None;
        if named.has("caller") && self.inner.get_attr("caller")?.is_true() {
            taken.push("caller");
            caller = Some(named.get::<Value>("caller")?);
        }
        let rest: Vec<Value> = given.collect();
        if !rest.is_empty() && !self.has("varargs") {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        let left: Vec<&str> = named.args().filter(|name| !taken.contains(name)).collect();
        if let (Some(name), false) = (left.first(), self.has("kwargs")) {
            let detail = format!("macro `{}` has no argument `{name}`, or it was given twice", self.name);
            return Err(Error::new(ErrorKind::TooManyArguments, detail));
        }
        for special in &self.specials {
            values.push(match special.as_str() {
                "varargs" => Value::from(Tuple::from(rest.clone())),
                _ => {
                    let pair = |name: &&str| Ok((Value::from(*name), named.get::<Value>(name)?));
                    Value::from_pairs(left.iter().map(pair).collect::<Result<Vec<_>, Error>>()?)
                }
            });
        }
        if let Some(caller) = caller {
            values.push(Kwargs::from_iter([("caller", caller)]).into());
        }
        self.inner.call(state, &values)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            CALLER => f.write_str("<Macro anonymous>"),
            name => write!(f, "<Macro '{name}'>"),
        }
    }
}
